"""The masked autoencoder: features from predicting hidden patches, without labels."""
