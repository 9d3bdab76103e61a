"""What clients train: model, data and loss, and who holds which samples.

`mnist` loads the digits, `partition` deals them to clients, `batches` draws from what a client holds: these need NumPy
only. `task` adds model and loss, and needs torch.
"""

__all__ = ["NAMES"]

NAMES = ("mnist", "mnist-cnn", "mnist-mlp", "snli", "sst2", "text-classification", "trec")  # those of `task.TASKS`
