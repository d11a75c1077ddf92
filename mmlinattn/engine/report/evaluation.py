"""Scores per class and confusion matrix of a validation, from predictions that it makes anyway.

The metrics here join the evaluator of a validation. They add no score to its result.
"""

import json
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, field
from io import StringIO
from tempfile import TemporaryDirectory
from typing import Any, Dict, List, Optional, Sequence

import numpy as np
import torch
from mmengine.evaluator import BaseMetric, Evaluator
from mmengine.fileio import load

from ...utils.messages import log_warning

# Detections that the confusion matrix counts, as in MMDetection's confusion_matrix.py.
MIN_SCORE, MIN_IOU = 0.3, 0.5
BACKGROUND = 'background'
Column = List[Optional[float]]


@dataclass
class Evaluation:
    """Scores per class of one validation.

    Args:
        classes: names of the K classes.
        columns: scores by name, one per class; None where a class has no ground truth.
        confusion: counts [true class][predicted class]; of detections with a last row and column
            for the background.
        precision: of a detector, that of each class at the recalls 0, 0.01, ..., 1 and IoU 0.5.
        about: the validation, such as ``'epoch 12'``.
    """

    classes: List[str]
    columns: Dict[str, Column]
    confusion: List[List[int]]
    precision: List[Column] = field(default_factory=list)
    about: str = ''

    def dumps(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def loads(text: str) -> 'Evaluation':
        return Evaluation(**json.loads(text))


class ReportMetric(BaseMetric):
    """Base class of the metrics that make an :class:`Evaluation`.

    An error ends this metric with a warning, never the training.

    Args:
        metric: the framework's metric of the same validation.
    """

    default_prefix = 'report'  # of no score

    def __init__(self, metric: BaseMetric) -> None:
        super().__init__(collect_device=metric.collect_device)
        self.metric = metric
        # Of the first process; the first one after a reset counts, see ModelEMAHook.
        self.evaluation: Optional[Evaluation] = None

    def process(self, data_batch: Any, data_samples: Sequence[dict]) -> None:
        try:
            self.collect(data_samples)
        except Exception as error:
            self.results += [None] * len(data_samples)
            self.warn(error)

    def compute_metrics(self, results: list) -> dict:
        if self.evaluation is None and all(result is not None for result in results):
            try:
                self.evaluation = self.summarize(results)
            except Exception as error:
                self.warn(error)
        return {}

    def warn(self, error: Exception) -> None:
        log_warning(f'no scores per class in the report ({type(error).__name__}: {error})')

    @property
    def classes(self) -> List[str]:
        return [str(name) for name in self.dataset_meta['classes']]

    def collect(self, data_samples: Sequence[dict]) -> None:
        """Add one result for each sample to ``results``."""
        raise NotImplementedError

    def summarize(self, results: list) -> Evaluation:
        """Return the scores of the results of all processes."""
        raise NotImplementedError


class SegmentationReport(ReportMetric):
    """IoU, accuracy and confusion of the pixels of each class, beside IoUMetric."""

    def collect(self, data_samples: Sequence[dict]) -> None:
        number = len(self.classes)
        for sample in data_samples:
            pred = sample['pred_sem_seg']['data'].squeeze()
            true = sample['gt_sem_seg']['data'].squeeze().to(pred.device)
            counted = (true != self.metric.ignore_index) & (true < number)
            pairs = true[counted].long() * number + pred[counted].long()
            counts = torch.bincount(pairs, minlength=number**2)
            # An image has few of all pairs of classes.
            places = counts.nonzero().flatten()
            self.results.append((places.cpu(), counts[places].cpu()))

    def summarize(self, results: list) -> Evaluation:
        number = len(self.classes)
        counts = torch.zeros(number**2, dtype=torch.long)
        for places, found in results:
            counts[places] += found
        matrix = counts.view(number, number)
        hits, predicted, true = matrix.diag(), matrix.sum(0), matrix.sum(1)
        scores = self.metric.total_area_to_metrics(
            *(x.double() for x in (hits, predicted + true - hits, predicted, true)), ['mIoU']
        )
        columns = {
            name: _column(scores[key]) for name, key in dict(IoU='IoU', accuracy='Acc').items()
        }
        columns['pixels'] = true.tolist()
        return Evaluation(self.classes, columns, matrix.tolist())


class ClassificationReport(ReportMetric):
    """Accuracy, precision and F1 of each class, beside MMPretrain's metrics of single labels."""

    def collect(self, data_samples: Sequence[dict]) -> None:
        for sample in data_samples:
            self.results.append((int(sample['gt_label']), int(sample['pred_label'])))

    def summarize(self, results: list) -> Evaluation:
        number = len(self.classes)
        true, predicted = torch.tensor(results).T
        matrix = torch.bincount(true * number + predicted, minlength=number**2)
        matrix = matrix.view(number, number)
        hits, called, rows = (x.double() for x in (matrix.diag(), matrix.sum(0), matrix.sum(1)))
        columns = {
            'accuracy': _column(hits / rows),
            'precision': _column(torch.where(rows > 0, hits / called.clamp(min=1), torch.nan)),
            'F1': _column(torch.where(rows > 0, 2 * hits / (rows + called), torch.nan)),
            'images': matrix.sum(1).tolist(),
        }
        return Evaluation(self.classes, columns, matrix.tolist())


class DetectionReport(ReportMetric):
    """AP, precision and recall of each class, and confusion, beside MMDetection's CocoMetric.

    pycocotools evaluates once more, without the ranges of areas.
    """

    def collect(self, data_samples: Sequence[dict]) -> None:
        # CocoMetric comes first and has added the predictions of this batch.
        self.results += self.metric.results[len(self.results) :]

    def summarize(self, results: list) -> Evaluation:
        metric = self.metric
        with TemporaryDirectory() as folder:
            files = metric.results2json([pred for _, pred in results], f'{folder}/predictions')
            found = {kind: load(files[kind]) for kind in ('bbox', 'segm') if kind in files}
        columns: Dict[str, Column] = {}
        for kind in metric.metrics:
            if kind in found:
                precision = self._precision(found[kind], kind)  # [T, R, K]
                label = 'AP' if kind == 'bbox' else 'mask AP'
                for name, thresholds in (('', slice(None)), ('50', [0.5]), ('75', [0.75])):
                    rows = precision[self._at(thresholds)]
                    columns[f'{label}{name}'] = _column(_mean_of_known(rows))
                if kind == 'bbox' or 'bbox' not in metric.metrics:
                    curves = precision[self._at([MIN_IOU])][0].T
        matrix = self._confusion(found['bbox'])
        columns['objects'] = matrix[:-1].sum(1).tolist()
        return Evaluation(self.classes, columns, matrix.tolist(), [_column(c) for c in curves])

    def _at(self, thresholds: Any) -> Any:
        """Return the index of the IoU thresholds that are as given."""
        if isinstance(thresholds, slice):
            return thresholds
        return np.isclose(np.asarray(self.metric.iou_thrs)[:, None], thresholds).any(1)

    def _run(self, predictions: List[dict], kind: str, **params: Any) -> Any:
        from mmdet.datasets.api_wrappers import COCOeval

        if kind == 'segm':
            predictions = [{k: v for k, v in p.items() if k != 'bbox'} for p in predictions]
        api = self.metric._coco_api
        run = COCOeval(api, api.loadRes(predictions), kind)
        own = dict(
            catIds=self.metric.cat_ids,
            imgIds=self.metric.img_ids,
            areaRng=[[0, 1e10]],
            areaRngLbl=['all'],
            # The AP that CocoMetric logs is that of 100 detections in an image.
            maxDets=[self.metric.proposal_nums[0]],
        )
        vars(run.params).update(own, **params)
        run.evaluate()
        return run

    def _precision(self, predictions: List[dict], kind: str) -> np.ndarray:
        """Return the precisions [T, R, K] by IoU, recall and class; NaN for no objects."""
        thresholds = np.asarray(self.metric.iou_thrs)
        with redirect_stdout(StringIO()):
            if not predictions:
                shape = (len(thresholds), 101, len(self.classes))
                return np.zeros(shape)
            run = self._run(predictions, kind, iouThrs=thresholds)
            run.accumulate()
        precision = run.eval['precision'][:, :, :, 0, 0]
        return np.where(precision < 0, np.nan, precision)

    def _confusion(self, predictions: List[dict]) -> np.ndarray:
        """Return the counts [true][predicted], with the background last, of pairs by IoU."""
        api, number = self.metric._coco_api, len(self.classes)
        row = {category: i for i, category in enumerate(self.metric.cat_ids)}
        matrix = np.zeros((number + 1, number + 1), np.int64)
        confident = [p for p in predictions if p['score'] >= MIN_SCORE]
        if not confident:
            images = self.metric.img_ids
            truth = api.loadAnns(api.getAnnIds(imgIds=images, catIds=[*row], iscrowd=False))
            np.add.at(matrix, ([row[ann['category_id']] for ann in truth], -1), 1)
            return matrix
        with redirect_stdout(StringIO()):
            run = self._run(confident, 'bbox', useCats=0, iouThrs=np.array([MIN_IOU]))
        for image in filter(None, run.evalImgs):
            # An object's id may be 0, which is 'unmatched' in dtMatches.
            pairs = {int(dt): gt for gt, dt in zip(image['gtIds'], image['gtMatches'][0]) if dt}
            true = {gt: row[api.anns[gt]['category_id']] for gt in image['gtIds']}
            ignored = {gt for gt, skip in zip(image['gtIds'], image['gtIgnore']) if skip}
            for gt in true.keys() - pairs.values() - ignored:
                matrix[true[gt], number] += 1
            for dt in image['dtIds']:
                gt, predicted = pairs.get(int(dt)), row[run.cocoDt.anns[dt]['category_id']]
                if gt is None:
                    matrix[number, predicted] += 1
                elif gt not in ignored:
                    matrix[true[gt], predicted] += 1
        return matrix


# Metrics of the frameworks by the name of their class or of one of its parents.
REPORTS = {
    'CocoMetric': DetectionReport,
    'IoUMetric': SegmentationReport,
    'Accuracy': ClassificationReport,
    'SingleLabelMetric': ClassificationReport,
}
# They inherit from one of those and use other data.
OTHERS = {'LVISMetric'}


def report_metric(evaluator: Evaluator) -> Optional[ReportMetric]:
    """Return the metric that reports on a validation, or None if none of its metrics is known."""
    for metric in evaluator.metrics:
        names = {kind.__name__ for kind in type(metric).__mro__}
        for name in REPORTS.keys() & names if not OTHERS & names else ():
            return REPORTS[name](metric)
    return None


def _mean_of_known(precision: np.ndarray) -> np.ndarray:
    """Return the mean of each class over [T, R, K]; NaN without a warning for absent classes."""
    known = ~np.isnan(precision)
    counts = np.where(known.any((0, 1)), known.sum((0, 1)), np.nan)
    return np.nansum(precision, (0, 1)) / counts


def _column(values: Any) -> Column:
    values = np.asarray(values, dtype=float).tolist()
    return [None if value != value else round(value, 4) for value in values]
