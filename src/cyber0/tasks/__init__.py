"""What clients train: model, data and loss, and who holds which samples.

`mnist` loads the digits, `partition` deals them to clients, `batches` draws from what a client holds: these need NumPy
only. `task` adds model and loss, and needs torch.
"""

__all__ = ["NAMES", "TASKS"]

TASKS = {
    "mnist": "cyber0.tasks.task:mnist",
    "mnist-cnn": "cyber0.tasks.task:mnist_cnn",
    "mnist-mlp": "cyber0.tasks.task:mnist_mlp",
    "snli": "cyber0.tasks.text.tasks:snli",
    "sst2": "cyber0.tasks.text.tasks:sst2",
    "completion": "cyber0.tasks.text.completion:completion",
    "text-classification": "cyber0.tasks.text.tasks:text_classification",
    "text-regression": "cyber0.tasks.text.regression:text_regression",
    "token-classification": "cyber0.tasks.text.tagging:token_classification",
    "trec": "cyber0.tasks.text.tasks:trec",
}
"""The tasks that have a name: where the function is that makes each, imported only when the task is asked for."""

NAMES = tuple(TASKS)
