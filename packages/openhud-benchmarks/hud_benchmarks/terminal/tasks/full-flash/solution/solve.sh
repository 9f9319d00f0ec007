#!/bin/bash
set -e
spooled=$(grep -l '"state": "sent"' flash/spool/outgoing/*.json | xargs cat | wc -c)
largest=$(cd flash && find . -type f -printf '%s %P\n' | sort -rn | head -1)
printf '{"largest": "%s", "largest_bytes": %d, "spooled_bytes": %d}\n' "${largest#* }" "${largest%% *}" "$spooled" > report.json
grep -l '"state": "sent"' flash/spool/outgoing/*.json | xargs rm
rm -r flash/cache/.last flash/cache/index.bin
