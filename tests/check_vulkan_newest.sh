#!/bin/sh
# The Vulkan backend on the driver and under the validation layers of a newer distribution: makes a root of a Debian suite, copies the tree
# there, and runs the tests of Vulkan and tests/check_vulkan.sh inside. From Mesa 26 on lavapipe has cooperative matrices. By hand, as root:
#
#     tests/check_vulkan_newest.sh [SUITE]     SUITE: sid (default), testing, or a release
#
# ROOT: where the root is, made if it is not there (default: build/SUITE; 1.2 GB). It stays for the next time.
# MIRROR: where packages come from (default: as the machine's own Debian packages, or else debootstrap's default).
# TESTS: words of the tests that run first (default: vulkan spirv). Needs debootstrap and chroot. With the driver's cache of kernels empty,
# as in a new root, it takes a quarter of an hour on two cores. The last line is that of check_vulkan.sh, the status that of all.
set -eu
unset CDPATH
cd "$(dirname "$0")/.."
case ${1-} in
-h | --help) sed -n '2,/^set -eu/{/^set -eu/d;s/^# \{0,1\}//;p;}' tests/check_vulkan_newest.sh && exit 0 ;;
-*) echo "check_vulkan_newest.sh: no option '$1'; see --help" >&2 && exit 2 ;;
esac
suite=${1:-sid}
root=${ROOT:-build/$suite}
packages=gcc,libc6-dev,libvulkan-dev,mesa-vulkan-drivers,vulkan-validationlayers,vulkan-tools,glslang-tools

if [ ! -e "$root/made" ]; then
    [ ! -e "$root" ] || { echo "check_vulkan_newest.sh: $root was not finished; remove it" >&2 && exit 2; }
    mirror=${MIRROR-$(apt-get indextargets --format '$(REPO_URI)' 'Identifier: Packages' 'Label: Debian' 2>/dev/null | sed 1q)}
    mkdir -p "$root"
    # shellcheck disable=SC2086 # no mirror is no word
    debootstrap --variant=minbase --include="$packages" "$suite" "$root" $mirror
    : >"$root/made"
fi
rm -rf "$root/fastgen"
mkdir "$root/fastgen"
{ git ls-files -co --exclude-standard | while read -r file; do [ ! -f "$file" ] || echo "$file"; done; } | tar cf - -T - | tar xf - -C "$root/fastgen"

# inside COMMAND: in the copy of the tree.
inside() { chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TESTS="${TESTS-vulkan spirv}" sh -c "cd /fastgen && $1"; }

status=0
inside 'vulkaninfo --summary 2>/dev/null | grep -E "deviceName|driverInfo" || true'
inside './build.sh test' || status=1
inside 'unset TESTS && tests/check_vulkan.sh' || status=1
exit $status
