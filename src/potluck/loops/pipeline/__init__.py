"""The pipeline loop: one model laid out over a chain of uneven devices, batches flowing through it.

settings · courses · layouts · replication · recovery      what a user chooses
planner · costs · history · sourcing · ledger · speeds     decisions: arithmetic on what is known
messages · mathematics                                     what is said, and what is asked of the numbers
device ▸ stage ▸ replicator, line, shelf, assembly         a device's side
conductor ▸ terms ▸ leader, archive                        the coordinator's side
"""
