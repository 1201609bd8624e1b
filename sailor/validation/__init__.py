"""How far the simulator is from measurements that others published."""
