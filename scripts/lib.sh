# SPDX-License-Identifier: GPL-3.0-or-later
# Shared by scripts: installs missing packages and runs commands quietly. Source it, then set `log`,
# the file for the output of quiet commands.
# shellcheck shell=bash disable=SC2034,SC2154

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

build_packages=(gcc libc6-dev cmake ninja-build pkg-config libcjson-dev libglpk-dev libgsl-dev
  libhwloc-dev libsqlite3-dev libxxhash-dev libyaml-dev)

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }

finds_header() { printf '#include <%s>\n' "$1" | "${CC:-cc}" -E -x c - >/dev/null 2>&1; }

# Whether the files of a Debian package are there, installed by the package or not.
has() {
  case $1 in
    gcc) command -v "${CC:-cc}" >/dev/null ;;
    cmake | file | make | pkg-config) command -v "$1" >/dev/null ;;
    binutils) command -v strip >/dev/null ;;
    binutils-*) command -v "${1#binutils-}-strip" >/dev/null ;;
    gcc-aarch64-linux-gnu) command -v aarch64-linux-gnu-gcc >/dev/null ;;
    libc6-dev-arm64-cross) [[ -e /usr/aarch64-linux-gnu/include/stdlib.h ]] ;;
    qemu-user) command -v qemu-aarch64 >/dev/null ;;
    debootstrap) command -v debootstrap >/dev/null || [[ -x /usr/sbin/debootstrap ]] ;;
    dpkg-dev) command -v dpkg-source >/dev/null ;;
    ninja-build) command -v ninja >/dev/null ;;
    libc6-dev) finds_header stdlib.h ;;
    libcjson-dev) finds_header cjson/cJSON.h ;;
    libglpk-dev) finds_header glpk.h ;;
    libgsl-dev) finds_header gsl/gsl_version.h ;;
    libhwloc-dev) finds_header hwloc.h ;;
    libsqlite3-dev) finds_header sqlite3.h ;;
    libxxhash-dev) finds_header xxhash.h ;;
    libyaml-dev) finds_header yaml.h ;;
    clang) command -v clang >/dev/null ;;
    libomp-dev) printf '#include <omp.h>\n' | clang -fopenmp -E -x c - >/dev/null 2>&1 ;;
    g++) command -v "${CXX:-c++}" >/dev/null ;;
    libsimgrid-dev) finds_header simgrid/engine.h ;;
    libcmocka-dev) printf '#include <cmocka.h>\n' |
      "${CC:-cc}" -E -x c -include stdarg.h -include stddef.h -include stdint.h \
        -include setjmp.h - >/dev/null 2>&1 ;;
    python3-venv) python3 -c 'import ensurepip, venv' 2>/dev/null ;;
    *) say "lib.sh does not know how to look for $1" && exit 2 ;;
  esac
}

# Appends a command's output to $log and shows the end of it if the command fails.
quietly() {
  local status=0 first
  mkdir -p "$(dirname "$log")"
  printf '\n$ %s\n' "$*" >>"$log"
  first=$(wc -l <"$log")
  "$@" >>"$log" 2>&1 </dev/null || status=$?
  if ((status)); then
    tail -n "+$first" "$log" | tail -n 40 >&2
    say "failed ($status): $*"
    say "the whole output is in $log"
  fi
  return "$status"
}

# Installs the missing ones of the named Debian packages. Exits with 3 if that is not possible.
install_missing() {
  local package missing=() as_root=()
  for package; do has "$package" || missing+=("$package"); done
  ((${#missing[@]})) || return 0

  local apt=(apt-get install -y --no-install-recommends "${missing[@]}")
  if ! command -v apt-get >/dev/null; then
    say "missing, in Debian's names: ${missing[*]}"
    say "this system has no apt-get: install them its own way, then run $0 again"
    exit 3
  elif ((EUID)); then
    # sudo works without a password, or at a terminal.
    if command -v sudo >/dev/null && { [[ -t 0 ]] || sudo -n true 2>/dev/null; }; then
      as_root=(sudo)
      say "asking sudo for the right to install: ${missing[*]}"
      sudo true || exit 3
    else
      say "missing packages, and no right to install them. As root, run:"
      say "  apt-get update && ${apt[*]}"
      exit 3
    fi
  fi

  say "installing ${missing[*]}"
  as_root+=(env DEBIAN_FRONTEND=noninteractive)
  # One broken third-party source makes the whole update fail, so apt-get install decides.
  quietly "${as_root[@]}" apt-get update || say "apt-get update failed; trying to install all the same"
  quietly "${as_root[@]}" "${apt[@]}" || exit 3
  for package in "${missing[@]}"; do
    has "$package" || { say "$package is installed, yet ${CC:-cc} and PATH do not find it" && exit 3; }
  done
}
