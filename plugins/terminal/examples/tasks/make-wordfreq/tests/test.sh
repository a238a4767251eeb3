#!/bin/bash
# A third of the reward for each of three texts. The program runs as the test's child; the reward is written last.
ours() { tr 'A-Z' 'a-z' < "$1" | grep -oE '[a-z]+' | sort | uniq -c | sort -k1,1nr -k2,2 | head -n "$2" | awk '{print $1, $2}'; }
good=0
for case in "sample.txt 3" "letter.txt 5" "ties.txt 4"; do
  set -- $case
  theirs=$(timeout 10 /app/wordfreq "$2" < "/tests/$1" 2> /dev/null)
  [ -n "$theirs" ] && [ "$theirs" = "$(ours "/tests/$1" "$2")" ] && good=$((good + 1))
done
python3 -c "print($good / 3)" > /logs/verifier/reward.txt
