"""What the workbench answers from: the KB, the proposals, the models, and counts of all of them."""
