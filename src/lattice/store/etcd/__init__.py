"""etcd."""
