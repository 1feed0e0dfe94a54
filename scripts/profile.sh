#!/bin/sh
# Takes the profiler passes of a day: scripts/profile.sh --help. The work is in counters.py; a profile.py would hide
# Python's own module of that name from every script beside it.
exec python3 "$(dirname "$0")/counters.py" "$@"
