"""Lets PyPI's torchvision, which is built for CUDA, be imported beside a torch for CPUs.

Its compiled operators cannot be loaded then, and it fails while it describes them to torch. Declaring their names and
arguments is enough: SGLang and transformers import torchvision and use none of them for text.
"""

import importlib.abc
import sys

_POOL = "SymInt pooled_height, SymInt pooled_width"
_BACK = "SymInt batch_size, SymInt channels, SymInt height, SymInt width"
_ROIS = "Tensor rois, float spatial_scale"
_RATIO = "SymInt sampling_ratio"
_CONV = (
    "SymInt stride_h, SymInt stride_w, SymInt pad_h, SymInt pad_w, SymInt dilation_h, SymInt dilation_w, "
    "SymInt groups, SymInt offset_groups, bool use_mask"
)
_OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    f"roi_align(Tensor input, {_ROIS}, {_POOL}, int sampling_ratio, bool aligned) -> Tensor",
    f"_roi_align_backward(Tensor grad, {_ROIS}, {_POOL}, {_BACK}, int sampling_ratio, bool aligned) -> Tensor",
    f"roi_pool(Tensor input, {_ROIS}, {_POOL}) -> (Tensor, Tensor)",
    f"_roi_pool_backward(Tensor grad, Tensor rois, Tensor argmax, float spatial_scale, {_POOL}, {_BACK}) -> Tensor",
    f"ps_roi_align(Tensor input, {_ROIS}, {_POOL}, int sampling_ratio) -> (Tensor, Tensor)",
    f"_ps_roi_align_backward(Tensor grad, Tensor rois, Tensor mapping, float spatial_scale, {_POOL}, "
    f"int sampling_ratio, {_BACK}) -> Tensor",
    f"ps_roi_pool(Tensor input, {_ROIS}, {_POOL}) -> (Tensor, Tensor)",
    f"_ps_roi_pool_backward(Tensor grad, Tensor rois, Tensor mapping, float spatial_scale, {_POOL}, {_BACK}) -> Tensor",
    f"deform_conv2d(Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, {_CONV}) -> Tensor",
    f"_deform_conv2d_backward(Tensor grad, Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, "
    f"{_CONV}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_declared = []


class _BeforeTorchvision(importlib.abc.MetaPathFinder):
    """Declares when torchvision is about to be imported; before that torch itself need not be loaded."""

    def find_spec(self, name, path=None, target=None):
        # Once: Python may read the .pth file that installs this twice, where lib64 is a link to lib.
        if name == "torchvision" and not _declared:
            import torch

            library = torch.library.Library("torchvision", "DEF")
            for operator in _OPERATORS:
                library.define(operator)
            _declared.append(library)
        return None


def install():
    sys.meta_path.insert(0, _BeforeTorchvision())
