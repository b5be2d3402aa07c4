"""Who may take part in a live run: certificates, join tokens, and what each device may send.

potluck certs ──▶ certificate_authority.py     the authority's folder, one bundle per device
                    ├─ certificate_signing.py    X.509 keys and certificates, this machine's names and address
                    └─ certificate_register.py   issued and revoked certificates

join request ──▶ admission_policy.py   every check of one run; a refusal carries its reason
                   ├─ certificate_register.py   was its certificate revoked?
                   └─ join_tokens.py            is its token valid? If it joined before, an expired one is enough

every link ──▶ access_control.py       Zenoh's rules: a device sends only as itself
                 └─ refusal_reasons.py          tells a device that these rules keep out why, and logs it

a device's own side: tls_credentials.py         its TLS files, checked before Zenoh uses them
                     connection_diagnosis.py    why a connection to the coordinator fails
"""
