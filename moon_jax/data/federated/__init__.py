"""Federated data sets: data whose examples have user ids.

users              the numbers of the users, and which of them are kept
assembled          the examples of each user, checked and put together
hdf5, sqlite, leaf, ...   sources that are read user by user
../imagefolder     folders of pictures, such as one for each hospital
records, writing   a federated data set that stays on disk
"""
