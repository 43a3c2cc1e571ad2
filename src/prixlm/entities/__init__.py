"""Entities as vectors: the encoder, Mirror-BERT, nearest neighbours, linking, VecMap."""
