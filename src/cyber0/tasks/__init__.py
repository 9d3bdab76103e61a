"""What clients train: model, data and loss, and who holds which samples.

`mnist`, `cifar10` and `femnist` load images, `partition` deals them to clients, `batches` draws from what a client
holds: these need NumPy only. `task` and `images` add model and loss, and need torch.
"""

__all__ = ["NAMES", "TASKS"]

TASKS = {
    "cifar10": "cyber0.tasks.images:cifar10",
    "completion": "cyber0.tasks.text.completion:completion",
    "femnist": "cyber0.tasks.images:femnist",
    "mnist": "cyber0.tasks.task:mnist",
    "mnist-cnn": "cyber0.tasks.task:mnist_cnn",
    "mnist-mlp": "cyber0.tasks.task:mnist_mlp",
    "snli": "cyber0.tasks.text.tasks:snli",
    "sst2": "cyber0.tasks.text.tasks:sst2",
    "text-classification": "cyber0.tasks.text.tasks:text_classification",
    "text-regression": "cyber0.tasks.text.regression:text_regression",
    "token-classification": "cyber0.tasks.text.tagging:token_classification",
    "trec": "cyber0.tasks.text.tasks:trec",
}
"""The tasks that have a name: where the function is that makes each, imported only when the task is asked for."""

NAMES = tuple(TASKS)
