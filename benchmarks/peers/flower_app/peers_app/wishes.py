"""What is asked of the app. It comes by the environment, which every process of Flower's hands down."""

from __future__ import annotations

import os

WORKLOAD = os.environ.get("PEERS_WORKLOAD", "")  # the file that Potluck wrote; without one clients only send back
DEVICES = int(os.environ.get("PEERS_DEVICES", "10"))
ROUNDS = int(os.environ.get("PEERS_ROUNDS", "5"))
PARAMETERS = int(os.environ.get("PEERS_PARAMETERS", "262144"))  # where there is no workload
ANSWER = os.environ.get("PEERS_ANSWER", "")  # where the server leaves what it has measured
