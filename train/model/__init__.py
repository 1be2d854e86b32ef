"""Models, optimizers, schedules, gradients, batch normalization."""
