# Sourced by the scripts beside it: where services live, and how a process is started, recognised
# and stopped. A process is only ever stopped by its own pid, after its command line was compared:
# a pid that a dead process left behind may belong to anything by now.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
export STREAMFORGE_CACHE=${STREAMFORGE_CACHE:-$HOME/.cache/streamforge}
tools=$STREAMFORGE_CACHE/tools
# How long a service may take until it is ready. Three seconds are usual, a busy machine needs more.
ready_s=${SERVICES_READY_S:-90}

fail() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 1; }

# one_at_a_time DIR: tests start services from many processes at once; the second one waits here
# and then finds the service running.
one_at_a_time() {
  mkdir -p "$1"
  exec 9> "$1/.lock"
  flock -w 300 9 || fail "another one has been starting or stopping in $1 for 5 minutes"
}

# is_ours PIDFILE TEXT: does that pid live, and does its command line hold this text?
is_ours() {
  local pid
  pid=$(cat "$1" 2> /dev/null) || return 1
  { tr '\0' ' ' < "/proc/$pid/cmdline"; } 2> /dev/null | grep -qF -- "$2"
}

# spawn PIDFILE LOG COMMAND...: in a session of its own, so that it outlives the caller and no
# Ctrl-C of the caller reaches it.
spawn() {
  local pidfile=$1 log=$2
  shift 2
  setsid nohup "$@" > "$log" 2>&1 < /dev/null 9>&- &
  echo $! > "$pidfile"
  # Until it executes the command it is a copy of this shell, which looks like somebody else's process.
  until is_ours "$pidfile" "${@: -1}" || ! kill -0 $! 2> /dev/null; do sleep 0.01; done
}

# await_ready PIDFILE LOG PROBE...: until the probe succeeds.
await_ready() {
  local pidfile=$1 log=$2 give_up=$((SECONDS + ready_s))
  shift 2
  until "$@" > /dev/null 2>&1; do
    # Not by its command line: that is empty for a moment while one program executes the next.
    kill -0 "$(cat "$pidfile")" 2> /dev/null || { tail -n 30 "$log" >&2; fail "it ended while starting; its log: $log"; }
    [ $SECONDS -lt $give_up ] || { tail -n 30 "$log" >&2; fail "not ready within $ready_s s; its log: $log"; }
    sleep 0.05
  done
}

# stop PIDFILE TEXT SIGNAL: waits for the end; SIGKILL after 30 s.
stop() {
  local pidfile=$1 pid
  if is_ours "$pidfile" "$2"; then
    pid=$(cat "$pidfile")
    kill "-$3" "$pid" 2> /dev/null || true
    for ((n = 0; n < 300; n++)); do
      is_ours "$pidfile" "$2" || break
      sleep 0.1
    done
    if is_ours "$pidfile" "$2"; then kill -KILL "$pid" 2> /dev/null || true; fi
  fi
  rm -f "$pidfile"
}

# Options of every `down`: sets $signal, $wipe and, for Kafka, $only.
down_options() {
  signal=TERM wipe='' only=''
  while [ $# -gt 0 ]; do
    case $1 in
    --kill) signal=KILL ;;
    --wipe) wipe=yes ;;
    --node) only=${2:?--node wants a number}; shift ;;
    *) fail "unknown option $1" ;;
    esac
    shift
  done
}
