#!/bin/bash
cat > /app/wordfreq <<'SCRIPT'
#!/bin/sh
tr 'A-Z' 'a-z' | grep -oE '[a-z]+' | sort | uniq -c | sort -k1,1nr -k2,2 | head -n "$1" | awk '{print $1, $2}'
SCRIPT
chmod +x /app/wordfreq
