"""Many devices: meshes, and how arrays are divided over them."""

from qkvflow.parallel.mesh import MeshShape, check_batch, make_mesh, mesh_shape, parse_mesh
from qkvflow.parallel.table import TABLE, shardings, with_shardings

__all__ = [
    "TABLE",
    "MeshShape",
    "check_batch",
    "make_mesh",
    "mesh_shape",
    "parse_mesh",
    "shardings",
    "with_shardings",
]
