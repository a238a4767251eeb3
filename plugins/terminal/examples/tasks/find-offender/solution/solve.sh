#!/bin/bash
cd /app
awk '$NF >= 500 { n[$1]++ } END { for (a in n) print a, n[a] }' logs/* | sort -k2,2nr | head -1 > answer.txt
