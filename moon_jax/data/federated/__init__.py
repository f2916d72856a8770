"""Data that name their users.

users              the numbers of the users, and which of them are kept
assembled          the examples of each user, checked and put together
hdf5, sqlite, leaf, ...   sources, read user by user
records, writing   a federation that stays on disk
"""
