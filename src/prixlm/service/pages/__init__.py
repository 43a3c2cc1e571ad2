"""The pages for people: overview, review, entity, search, ask, export and marks.

app.include_router(make_router(workbench))
"""

from prixlm.service.pages.routes import make_router

__all__ = ["make_router"]
