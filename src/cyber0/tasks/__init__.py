"""What clients train: model, data and loss."""
