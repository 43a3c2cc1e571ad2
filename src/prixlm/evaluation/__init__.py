"""The paper's tasks and the main job, measured on held-out data.

A task is one file here: it reads its data, asks models, and returns `ResultTable`s.
`link_prediction`, `entity_linking`, `lexicons` and `probing` are the paper's tasks (Sec. 3.2 to
3.5), `proposals` measures `prixlm enrich`. `reproduce` and `reproduce_names` make the paper's
tables with every row, from the models of `trained`.

To add a task, write a file here and a command in `cli/evaluate.py` that calls it and shows its
tables, with a line in the table `TASKS` there. If it belongs to the paper's tables,
`reproduce_names` needs a function that makes its `NamesTable`.
"""
