"""The reconciliation service: other tools match their tables to the KB (OpenRefine, `reconciler`).

app.include_router(make_router(workbench))
"""

from prixlm.service.reconcile.routes import make_router

__all__ = ["make_router"]
