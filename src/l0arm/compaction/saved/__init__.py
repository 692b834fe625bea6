"""Small networks on disk: description, weights, folder, card."""
