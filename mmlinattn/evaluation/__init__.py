"""Metrics that the frameworks lack: outlines of segments."""

from .boundary_iou import BoundaryIoUMetric, boundary_of

__all__ = ['BoundaryIoUMetric', 'boundary_of']
