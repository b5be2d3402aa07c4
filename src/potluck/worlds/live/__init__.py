"""The live world: one process per device, connected by Eclipse Zenoh.

How a device joins a run, and the file of each step:

    device                                           coordinator
    device_runtime.py                                coordinator_runtime.py
      coordinator_discovery.py  find its address       zenoh_session.py  listen as a router
                                                         connections/  limits on connections before their handshake
      join_handshake.py         ask, retry
      zenoh_session.py          connect ────TLS────▶   security/access_control.py      what its certificate may send
      handshake_messages.py     JoinRequest ───────▶   admission_server.py             protocol version, name
                                                         security/admission_policy.py  may this device join?
                                                           certificate_register.py       certificate: not revoked
                                                           join_tokens.py                token: signature, expiry, job
                                                         membership.py                 quarantine, new incarnation
                            ◀── JoinAccepted or JoinRefused   (refusal_log.py: log and journal)
      run_clock.py          ◀── clock query ───────▶   admission_server.py
      node_runtime.py           node, mailbox, heartbeat
      heartbeat.py          ─── ready ─────────────▶   membership.py                   Joined ──▶ the loop
      heartbeat.py          ◀── heartbeats ────────▶   heartbeat.py                    silent for the lease: Lost

How a message travels once a device has joined:

    live_node.py ─▶ mailbox.py ─▶ sender.py ─▶ zenoh_transport.py ═▶ zenoh_transport.py ─▶ receiver.py ─▶ live_node.py
                                     └── chunked_transfer.py · chunk_layout.py · wire_format.py · link_shaping.py ──┘

What arrives is dropped by its sender or queued for the event loop in `inbound_frames.py`; a device that was expelled is
cut off by `expulsion.py`. Work runs in `throttled_execution.py` at the speed of `compute_speed.py`. `security/` and
`connections/` have their own overviews.
"""
