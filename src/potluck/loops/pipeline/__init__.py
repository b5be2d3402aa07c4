"""The pipeline loop: one model laid out over a chain of uneven devices, batches flowing through it.

choices       settings · stage_schedules · partitioning · replication · recovery
decisions     pipeline_planner · pipeline_costs · layer_sources · batch_timer · quarantine
interfaces    messages · stage_backend
device        pipeline_device ▸ pipeline_stage ▸ stage_exchange, stage_replicator, stage_evaluator, version_store
coordinator   pipeline_coordinator ▸ term_leader ▸ archive_sync, term_requests; batch_flow; pipeline_members
"""
