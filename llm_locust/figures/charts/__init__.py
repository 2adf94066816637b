"""What a report's charts are drawn from: a run of any size reduced to a few thousand numbers."""

from llm_locust.figures.charts.run import RunCharts as RunCharts, run_charts as run_charts
