#!/bin/sh
# Makes the project's environment, or brings it up to date: environment.sh VENV PYTHON
#
# VENV/.stamp names what the environment was made from. It is written last and removed first, so that whatever was
# interrupted is made again from nothing. A changed lock or pyproject is installed over what is there.
set -eu

venv=$1
python=$2
identity="$python $(pwd)"
contents=$(cat requirements.lock pyproject.toml | cksum)
stamp=$venv/.stamp

fail() {
    printf 'environment: %s\n' "$@" >&2
    exit 1
}

if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$identity
$contents" ] && "$venv/bin/python" -c '' 2>/dev/null; then
    exit 0
fi

command -v "$python" >/dev/null 2>&1 ||
    fail "no '$python' on this machine." "Install Python 3.11 or later, or name one: make PYTHON=/path/to/python3.12 ..."
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
    fail "'$python' is $("$python" --version 2>&1 | head -n 1), but Python 3.11 or later is needed." \
        "Install one, or name one that is there: make PYTHON=/path/to/python3.12 ..."
"$python" -c 'import venv, ensurepip' 2>/dev/null ||
    fail "'$python' has no venv or ensurepip module; distributions pack them apart (python3-venv on Debian)." \
        "Install that package, or name another Python: make PYTHON=/path/to/python3.12 ..."

if [ -f "$stamp" ] && [ "$(head -n 1 "$stamp")" = "$identity" ] && "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    echo "== environment: updating $venv"
    rm -f "$stamp"
else
    echo "== environment: making $venv with $("$python" --version 2>&1); takes two or three minutes"
    rm -f "$stamp"
    "$python" -m venv --clear "$venv"
fi

pip() {
    "$venv/bin/python" -m pip --disable-pip-version-check --no-input "$@"
}
# The lock is the whole set, with hashes: nothing is resolved here, and nothing is built but the package itself.
pip install --quiet --require-hashes --no-deps --only-binary :all: -r requirements.lock ||
    fail "installing requirements.lock failed (see above); run the same command again once that is mended."
pip install --quiet --no-index --no-deps --no-build-isolation -e . ||
    fail "installing the package itself failed (see above)."
pip check >/dev/null || { pip check || true; fail "the installed set does not fit together: 'make lock' makes a new one."; }

printf '%s\n%s\n' "$identity" "$contents" > "$stamp.new"
mv "$stamp.new" "$stamp"
