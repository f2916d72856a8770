"""Federated data sets: data whose examples have user ids.

users              the numbers of the users, and which of them are kept
assembled          the examples of each user, checked and put together
npz_folder         a folder with one .npz file for each client
hdf5, sqlite, leaf, ...   other sources that are read user by user
../imagefolder     folders of pictures by class, for each hospital, site or domain
user_records, writing   a federated data set that stays on disk
"""
