"""The paper's tasks: question and model in, answers and figures out; one file a task."""
