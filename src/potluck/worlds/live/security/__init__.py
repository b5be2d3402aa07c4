"""Who may take part in a live run: certificates, join tokens, and what each device may say.

authority  the fleet's own certificate authority, a folder     register  who got a certificate, who lost it
minting    X.509                                               certs     the files that a process shows, checked
tokens     who was invited to this run, and until when         access    a device speaks only as itself
gate       all of it for one run                               probe     why a link does not come about
lobby      where a device that is kept out learns why          here      how others call this machine
admissions who was let in before
"""
