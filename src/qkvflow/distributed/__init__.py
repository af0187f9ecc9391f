"""Many devices and many hosts: meshes, how arrays are divided over them, processes of one run."""

from qkvflow.distributed import hosts
from qkvflow.distributed.layout import Layout, make_layout, one_device
from qkvflow.distributed.mesh import MeshShape, check_batch, make_mesh, mesh_shape, parse_mesh
from qkvflow.distributed.table import TABLE, shardings, with_shardings

__all__ = [
    "TABLE",
    "Layout",
    "MeshShape",
    "check_batch",
    "hosts",
    "make_layout",
    "make_mesh",
    "mesh_shape",
    "one_device",
    "parse_mesh",
    "shardings",
    "with_shardings",
]
