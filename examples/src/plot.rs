use anyhow::Result;
use plotters::prelude::*;
use std::path::Path;

/// A named line of a plot.
#[derive(Debug, Clone)]
pub struct Curve {
    /// Its name in the legend.
    pub name: String,
    /// Its points, from left to right.
    pub points: Vec<(f64, f64)>,
}

impl Curve {
    /// A line without points.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            points: Vec::new(),
        }
    }
}

/// Draws curves into an SVG file; the vertical axis starts at 0. Writes nothing where no curve has two points.
pub fn plot(path: &Path, x: &str, y: &str, curves: &[Curve]) -> Result<()> {
    if curves.iter().all(|curve| curve.points.len() < 2) {
        return Ok(());
    }
    let all = || curves.iter().flat_map(|curve| &curve.points);
    let least = all().map(|p| p.0).fold(f64::INFINITY, f64::min);
    let most = |value: fn(&(f64, f64)) -> f64| all().map(value).fold(f64::MIN_POSITIVE, f64::max);
    let area = SVGBackend::new(path, (720, 420)).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .margin(16)
        .x_label_area_size(40)
        .y_label_area_size(56)
        .build_cartesian_2d(least..most(|p| p.0), 0.0..most(|p| p.1) * 1.05)?;
    chart.configure_mesh().x_desc(x).y_desc(y).draw()?;
    for (i, curve) in curves.iter().enumerate() {
        let style = Palette99::pick(i).stroke_width(2);
        chart
            .draw_series(LineSeries::new(curve.points.iter().copied(), style))?
            .label(&curve.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], style));
    }
    chart
        .configure_series_labels()
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .draw()?;
    area.present()?;
    Ok(())
}
