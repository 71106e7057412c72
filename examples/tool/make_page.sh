#!/bin/sh
# Writes page.h, the page of fastgen serve as C strings, from page.html.
set -eu
unset CDPATH
cd "$(dirname "$0")"
{
    echo "/* The page of fastgen serve, written by make_page.sh from page.html. */"
    echo
    echo "static const char *const page_lines[] = {"
    sed -e 's/\\/\\\\/g' -e 's/"/\\"/g' -e 's/^/    "/' -e 's/$/\\n",/' page.html
    echo "};"
} >"${1:-page.h}"
