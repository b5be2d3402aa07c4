"""The settings of the app, from environment variables, which all processes of Flower inherit."""

from __future__ import annotations

import os

WORKLOAD = os.environ.get("PEERS_WORKLOAD", "")  # the file that Potluck wrote; if empty, clients only send back
DEVICES = int(os.environ.get("PEERS_DEVICES", "10"))
ROUNDS = int(os.environ.get("PEERS_ROUNDS", "5"))
PARAMETERS = int(os.environ.get("PEERS_PARAMETERS", "262144"))  # of the model if there is no workload
ANSWER = os.environ.get("PEERS_ANSWER", "")  # where the server writes its measurements
