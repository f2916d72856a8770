"""Where a run computes: devices, hosts, launchers, the compile cache."""
