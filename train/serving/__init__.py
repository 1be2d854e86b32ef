"""Export of a trained model as a SavedModel that takes image files, and prediction with it."""
