#!/usr/bin/env bash
# Workers of a fleet on machines that you reach by SSH, and that have openhud[environments]:
#   HUD_URL=http://hud.example.com:8000 HUD_API_KEY=PASS examples/fleet/ssh/fleet.sh up HOST...
#   examples/fleet/ssh/fleet.sh status HOST...
#   examples/fleet/ssh/fleet.sh down HOST...      SIGTERM; waits until what they played is over or handed back
# HUD_ROLLOUTS, HUD_NOTICE and HUD_LABELS='--label market=spot' change what a worker is started with. SSH: the command and
# its options, default ssh -o BatchMode=yes. A worker outlives the connection; its log is ~/.hud/fleet.log on its machine.
set -euo pipefail
usage() { sed -n '2,7s/^# //p' "$0" >&2; exit 2; }
[ $# -ge 2 ] || usage
action=$1
shift
read -r -a ssh <<<"${SSH:-ssh -o BatchMode=yes}"

# Another process may have the number of a worker that is gone.
lives='
lives() { pid=$(cat ~/.hud/fleet.pid 2>/dev/null) && ps -o args= -p "$pid" 2>/dev/null | grep -q "fleet join"; }
'
# Reads the pass as a line: on a command line, other users of the machine would see it.
up=$lives'
mkdir -p ~/.hud
lives && { echo "is up already"; exit 0; }
export PATH="$HOME/.local/bin:$PATH"
read -r HUD_API_KEY
export HUD_API_KEY
touch ~/.hud/fleet.log
from=$(($(wc -l <~/.hud/fleet.log) + 1))
setsid nohup hud fleet join "$@" >>~/.hud/fleet.log 2>&1 </dev/null &
started=$!
echo "$started" >~/.hud/fleet.pid
for _ in $(seq 300); do  # A minute: Python starts slowly on a busy machine.
    grep -q "^Joined" <(tail -n +"$from" ~/.hud/fleet.log) && { echo "is up"; exit 0; }
    kill -0 "$started" 2>/dev/null || break  # Not by its words: while a program replaces another, it has none.
    sleep 0.2
done
tail -n 3 ~/.hud/fleet.log
exit 1
'
down=$lives'
lives || { echo "was not up"; exit 0; }
kill -TERM "$pid"
while lives; do sleep 0.2; done
rm -f ~/.hud/fleet.pid
echo "is down"
'
status=$lives'
if lives; then echo "is up: $(tail -n 1 ~/.hud/fleet.log)"; else echo "is not up"; fi
'

# Quote words for any shell of the Bourne family: the host's login shell reads them first.
quoted() {
    local word quote="'\\''"
    for word in "$@"; do printf "'%s' " "${word//\'/$quote}"; done
}

# Run a script on a host, with arguments; each line of its output begins with the host.
on() {
    local host=$1 script=$2
    shift 2
    "${ssh[@]}" "$host" "bash -c $(quoted "$script" fleet "$@")" | sed "s/^/$host /"
}

case $action in
    up)
        : "${HUD_URL:?is the address of the platform, http://HOST:PORT}"
        : "${HUD_API_KEY:?is the pass: hud fleet pass create ssh}"
        read -r -a labels <<<"${HUD_LABELS:-}"
        run() {
            on "$1" "$up" "$HUD_URL" --rollouts "${HUD_ROLLOUTS:-16}" --notice "${HUD_NOTICE:-15}" "${labels[@]}" <<<"$HUD_API_KEY"
        }
        ;;
    down) run() { on "$1" "$down" </dev/null; } ;;
    status) run() { on "$1" "$status" </dev/null; } ;;
    *) usage ;;
esac

# All hosts at once; it fails where one does.
pids=()
for host in "$@"; do
    run "$host" &
    pids+=($!)
done
failed=0
for pid in "${pids[@]}"; do
    wait "$pid" || failed=1
done
exit $failed
