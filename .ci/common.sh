# What the scripts here share; they source this file in the checkout's folder.

# Two processes; each file in one of them, because its tests share a daemon or a server.
PARALLEL=(-n 2 --dist loadfile --no-loadscope-reorder)

# Chromium for the tests with the marker `browser`, where it can be installed; else they skip.
install_browser() {
  local name
  for name in chromium chromium-browser google-chrome; do
    if command -v "$name" >/dev/null; then return 0; fi
  done
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; } >/dev/null 2>&1 ||
      echo "chromium cannot be installed: the tests of the live page skip" >&2
  fi
  return 0
}
