"""Data that name their users, one file for each source.

users        who is who, which are kept: of data in memory
assembled    what each user has, checked and put together; what sources share
hdf5, sqlite, folder, huggingface   the sources
"""
