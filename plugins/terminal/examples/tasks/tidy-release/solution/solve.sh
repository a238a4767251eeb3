#!/bin/bash
cd /app
chmod a+x releases/*/run
ls releases | sort -V | head -n -3 | while read -r version; do rm -r "releases/$version"; done
ln -s "releases/$(ls releases | sort -V | tail -1)" current
