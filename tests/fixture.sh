# SPDX-License-Identifier: GPL-3.0-or-later
# Shared by test scripts. Source it first, with the program as $1. It sets $hocket and $tests (this
# folder) and changes to $folder, a new empty folder with a store of its own, which is removed at
# exit. Checks continue after a failure; a script ends with `finish`.
# shellcheck shell=bash disable=SC2034
set -u
hocket=$(realpath "$1")
tests=$(realpath "$(dirname "${BASH_SOURCE[0]}")")
folder=$(mktemp -d)
# A signal may end a copy of the shell before it has become a program: only the script removes.
trap '[ "$BASHPID" != $$ ] || { chmod -R u+w "$folder"; rm -rf "$folder"; }' EXIT
cd "$folder" || exit 1
HOCKET_SHARE=$(realpath "$tests/../share")
export HOCKET_SHARE HOCKET_STORE=$folder/kept/store.db # does not exist yet
failures=0
limit=60 # seconds that a command may take

fail() {
  echo "FAIL: $*"
  failures=$((failures + 1))
}

# finish WHAT
finish() {
  [ "$failures" -eq 0 ] || exit 1
  echo "$1: all as expected"
}

# ok ARGUMENTS...: exit 0, nothing on stderr; stdout to `out`.
ok() {
  timeout "$limit" "$hocket" "$@" >out 2>err || fail "hocket $*: exit $?: $(cat err)"
  [ ! -s err ] || fail "hocket $*: said '$(cat err)'"
}

# Writes a model of 115,008 parameters to tiny.json.
tiny_model() {
  cat >tiny.json <<'END'
{"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2, "hidden_size": 64,
 "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 256,
 "max_position_embeddings": 4096}
END
}

# prints PATTERN: a line of the last command's output matches.
prints() {
  grep -qE -- "$1" out || fail "no /$1/ in '$(head -c 1500 out)'"
}

# said CODE PATTERN WHAT GOT: the exit status GOT equals CODE, and `err` is one line that matches.
said() {
  [ "$4" -eq "$1" ] || fail "$3: exit $4, expected $1; said '$(head -c 400 err)'"
  grep -qE -- "$2" err || fail "$3: said '$(head -c 400 err)', expected /$2/"
  [ "$(wc -l <err)" -eq 1 ] || fail "$3: expected one line on stderr, got $(wc -l <err)"
  ! grep -q '[[:cntrl:]]' err || fail "$3: control characters on stderr"
}

# expect CODE PATTERN ARGUMENTS...: hocket exits with CODE, one matching line on stderr, nothing on
# stdout.
expect() {
  local code=$1 pattern=$2 status=0
  shift 2
  timeout "$limit" "$hocket" "$@" >out 2>err || status=$?
  said "$code" "$pattern" "hocket $*" "$status"
  [ ! -s out ] || fail "hocket $*: printed '$(head -c 200 out)'"
}
