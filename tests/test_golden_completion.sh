#!/bin/bash
# SPDX-License-Identifier: GPL-3.0-or-later
# The man page contains every command and option of --help, and both are completed; the formatters
# and shells that are installed accept page and scripts; bash and fish complete.
# Usage: test_golden_completion.sh HOCKET
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/fixture.sh"

ok help --man && cp out hocket.1
for shell in bash zsh fish; do
  ok help --completion $shell && cp out hocket.$shell
done

# -- Every command and option --------------------------------------------------------------------

"$hocket" --help >out
commands=$(sed -n '/^Commands:/,/^$/s/^  \(.*[^ ]\)   *[A-Z].*/\1/p' out)
[ "$(wc -l <<<"$commands")" -ge 24 ] || fail "commands of --help: $commands"
while read -r command; do
  "$hocket" $command --help >out
  options=$(sed -nE 's/^  (-[a-z], )?(--[a-z-]+).*/\2/p' out)
  [[ $options == *--help ]] || fail "options of $command: $options"
  man=$(sed -n "/^\.SS hocket ${command//-/\\\\-}\$/,/^\.S[SH]/p" hocket.1)
  [[ $man ]] || fail "no $command in the man page"
  for option in $options; do
    [[ $man == *"${option//-/\\-}\\fR"* ]] || fail "man page: $command has no $option"
  done
  [[ $("$hocket" help --complete $command -- | cut -f1) == "$options" ]] ||
    fail "completed options of $command"
  "$hocket" help --complete $command | grep -q "^${command##* }	[A-Z]" || fail "no $command completed"
done <<<"$commands"

# -- Formatters and shells -----------------------------------------------------------------------

warned() { # WHAT: the last command must have printed nothing to `err`
  [ ! -s err ] || fail "$1: $(head -3 err)"
}
if command -v groff >/dev/null; then
  groff -man -ww -Tascii hocket.1 >text 2>err || fail "groff: exit $?"
  warned groff
  grep -q "does not fit" text || fail "groff: no exit status"
fi
if command -v man >/dev/null && command -v groff >/dev/null; then
  LC_ALL=C man --warnings -l hocket.1 >text 2>err || fail "man: exit $?"
  warned "man --warnings"
fi
if command -v mandoc >/dev/null; then
  mandoc -T lint -W warning hocket.1 | grep -v "missing date" >err # .TH has a version, no date
  warned mandoc
fi
for shell in zsh fish; do
  command -v $shell >/dev/null || continue
  $shell -n hocket.$shell >err 2>&1 || fail "$shell -n: exit $?"
  warned "$shell -n"
done

# -- bash ------------------------------------------------------------------------------------------

# shellcheck source=/dev/null
. ./hocket.bash
# completes EXPECTED WORDS...: EXPECTED is all that completes the last word.
completes() {
  local expected=$1
  shift
  COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
  _hocket
  [ "${COMPREPLY[*]}" = "$expected" ] || fail "$*: completes to '${COMPREPLY[*]}', not '$expected'"
}
mkdir empty && cd empty || exit 1
completes plan "$hocket" pl
completes "model machine" "$hocket" m
completes "--model" "$hocket" plan --mo
completes "" "$hocket" plan --tensors
completes "--output" "$hocket" plan --out
completes "--tensors" "$hocket" model show gpt2 --te
completes "diff delete" "$hocket" machine d
completes "hocket deepspeed" "$hocket" plan --runtime ""
completes "interleave" "$hocket" simulate --policy int
completes "dos-8.3b" "$hocket" plan --model dos-8.
completes "polaris-a100-4x40gb" "$hocket" simulate --machine polaris-a100-4x4
completes "jlse-h100-4x80gb" "$hocket" machine show jlse-h100-4x8
completes "--completion" "$hocket" help --c
completes "bash zsh fish" "$hocket" help --completion ""
completes "" "$hocket" plan --tp ""
completes "diff delete" "$hocket" help machine d
touch "a plan.json"
completes "a plan.json" "$hocket" simulate a
cd .. || exit 1
[ "$(complete -p hocket)" = "complete -o filenames -F _hocket hocket" ] || fail "not registered"

# -- fish ------------------------------------------------------------------------------------------

if command -v fish >/dev/null; then
  # fish_completes EXPECTED LINE: EXPECTED is all that completes the line.
  fish_completes() {
    PATH=$(dirname "$hocket"):$PATH HOME=$PWD fish -c "source hocket.fish; complete -C '$2'" >out 2>err
    warned "fish: $2"
    [ "$(cut -f1 out | paste -sd ' ')" = "$1" ] || fail "fish: '$2' completes to '$(cat out)', not '$1'"
  }
  fish_completes "machine model" "hocket m"
  fish_completes "--model" "hocket plan --mo"
  fish_completes "deepspeed hocket" "hocket plan --runtime "
  fish_completes "dos-8.3b" "hocket plan --model dos-8."
  fish_completes "empty/a plan.json" "hocket simulate empty/"
fi

# -- zsh -------------------------------------------------------------------------------------------

if command -v zsh >/dev/null; then
  # zsh_completes EXPECTED WORDS...: what the function hands to zsh's own.
  cat >stub.zsh <<'END'
_describe() { print -l -- "${(P@)2}" }
compadd() { shift; print -l -- "$@" }
_files() { print files }
compdef() { : }
source ./hocket.zsh
words=("$@") CURRENT=$#
_hocket
END
  zsh_completes() {
    PATH=$(dirname "$hocket"):$PATH zsh -f stub.zsh "${@:2}" >out 2>err || fail "zsh: ${*:2}: exit $?"
    warned "zsh: ${*:2}"
    [ "$(paste -sd ' ' out)" = "$1" ] || fail "zsh: ${*:2} completes to '$(cat out)', not '$1'"
  }
  zsh_completes "model:actions machine:actions" hocket m
  zsh_completes "--tensors:list every parameter tensor" hocket model show gpt2 --te
  zsh_completes "hocket: deepspeed:" hocket plan --runtime ""
  zsh_completes "files" hocket simulate ""
  zsh_completes "" hocket plan --tensors
fi

# -- Mistakes --------------------------------------------------------------------------------------

expect 2 "expected bash, zsh or fish, got 'ksh'" help --completion ksh
expect 2 "expected bash, zsh or fish, got nothing" help --completion
expect 2 "'help --man' takes nothing more, got 'plan'" help --man plan
expect 2 "'help --completion' takes nothing more, got 'x'" help --completion bash x

finish "man page and completion"
