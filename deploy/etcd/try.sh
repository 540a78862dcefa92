#!/usr/bin/env bash
# Three members of etcd and three Lattice servers on this machine, to try a failover. Ctrl-C stops all processes.
# Usage: deploy/etcd/try.sh [FOLDER]     needs etcd (3.4.22, or 3.5.6, and newer) and lattice on the PATH
set -euo pipefail
folder=$(realpath -m "${1:-.lattice-etcd}")
started=()
trap 'trap - EXIT INT TERM; kill "${started[@]}" 2>/dev/null || true; wait' EXIT INT TERM
mkdir -p "$folder"

members= clients=
for i in 1 2 3; do
  members+="${members:+,}e$i=http://127.0.0.1:2${i}380"
  clients+="${clients:+,}127.0.0.1:2${i}379"
done
for i in 1 2 3; do
  etcd --name "e$i" --data-dir "$folder/e$i" --initial-cluster "$members" --initial-cluster-token lattice-try \
    --listen-client-urls "http://127.0.0.1:2${i}379" --advertise-client-urls "http://127.0.0.1:2${i}379" \
    --listen-peer-urls "http://127.0.0.1:2${i}380" --initial-advertise-peer-urls "http://127.0.0.1:2${i}380" >"$folder/e$i.log" 2>&1 &
  started+=($!)
done
for i in 1 2 3; do
  lattice server --store "etcd://$clients/lattice" --data-dir "$folder/s$i" --port "1${i}443" --instance-id "s$i" --lease-ttl 5 >"$folder/s$i.log" 2>&1 &
  started+=($!)
  echo "server s$i  https://127.0.0.1:1${i}443  process $!  lattice get nodes --kubeconfig $folder/s$i/kubeconfig"
done
echo "Kill the process of the leader, then ask another server for the new leader: curl -sk https://127.0.0.1:12443/health"
wait
