"""Data that name their users.

users              who is who, and which are kept
assembled          what each user has, checked and put together
hdf5, sqlite, folder, huggingface   sources, read user by user
records, writing   a federation that stays on disk
"""
