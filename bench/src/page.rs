//! Results as one HTML page that needs nothing else: tables, and a plot of each
//! that has something to plot.

use std::fmt::Write as _;
use std::ops::Range;

use plotters::prelude::*;

use crate::table::{Cell, Table};

/// Pixels of a plot.
const PLOT: (u32, u32) = (900, 380);

const STYLE: &str = "body{font-family:sans-serif;max-width:60em;margin:2em auto;padding:0 1em}\
    table{border-collapse:collapse;margin:1em 0}\
    td,th{padding:.15em .7em;text-align:right;border-bottom:1px solid #ddd}\
    th{border-bottom:2px solid #888}td:first-child,th:first-child{text-align:left}\
    code{background:#f4f4f4;padding:.1em .3em}svg{max-width:100%;height:auto}";

/// The page with all `tables`.
///
/// # Errors
/// If a plot cannot be drawn.
pub(crate) fn page(tables: &[Table]) -> anyhow::Result<String> {
    let title = tables.first().map_or("cellway bench", |table| table.command.as_str());
    let mut page = String::new();
    writeln!(page, "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">")?;
    writeln!(page, "<title>{}</title><style>{STYLE}</style></head><body>", escaped(title))?;
    if let Some(first) = tables.first() {
        writeln!(page, "<h1><code>{}</code></h1>", escaped(title))?;
        writeln!(page, "<p>{}</p>", escaped(&first.machine.to_text()))?;
    }
    for table in tables {
        writeln!(page, "<h2>{}</h2>", escaped(&table.title))?;
        if let Some(plot) = Plot::of(table) {
            page.push_str(&plot.draw()?);
        }
        write_table(&mut page, table)?;
        for note in &table.notes {
            writeln!(page, "<p>{}</p>", escaped(note))?;
        }
    }
    page.push_str("</body></html>\n");
    Ok(page)
}

fn write_table(page: &mut String, table: &Table) -> std::fmt::Result {
    page.push_str("<table><tr>");
    for column in &table.columns {
        let unit = if column.unit.is_empty() { "&nbsp;" } else { &escaped(&column.unit) };
        write!(page, "<th>{}<br><small>{unit}</small></th>", escaped(&column.name))?;
    }
    page.push_str("</tr>\n");
    for row in &table.rows {
        page.push_str("<tr>");
        row.iter().try_for_each(|cell| write!(page, "<td>{}</td>", escaped(&cell.to_string())))?;
        page.push_str("</tr>\n");
    }
    page.push_str("</table>\n");
    Ok(())
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A line for each column of the unit that most columns have, over the rows.
struct Plot<'t> {
    /// Of the rows.
    labels: Vec<String>,
    unit: &'t str,
    lines: Vec<(&'t str, Vec<Option<f64>>)>,
}

impl<'t> Plot<'t> {
    /// `None` where there is nothing to see: a single row, or no measured column.
    fn of(table: &'t Table) -> Option<Self> {
        if table.rows.len() < 2 {
            return None;
        }
        let is_measured =
            |column: usize| table.rows.iter().any(|row| matches!(row[column], Cell::Number(_)));
        let first = (0..table.columns.len()).find(|column| is_measured(*column))?;
        let unit_of = |column: usize| table.columns[column].unit.as_str();
        let columns = || (first..table.columns.len()).filter(|column| is_measured(*column));
        let count = |unit: &str| columns().filter(|column| unit_of(*column) == unit).count();
        // Of several as frequent ones the first.
        let unit = columns().rev().map(unit_of).max_by_key(|unit| count(unit))?;
        let labels = table
            .rows
            .iter()
            .map(|row| row[..first].iter().map(Cell::to_string).collect::<Vec<_>>().join(" "));
        let line = |column: usize| {
            let points = table.rows.iter().map(|row| match row[column] {
                Cell::Number(number) => Some(number),
                _ => None,
            });
            (table.columns[column].name.as_str(), points.collect())
        };
        let lines = columns().filter(|column| unit_of(*column) == unit).map(line).collect();
        Some(Self { labels: labels.collect(), unit, lines })
    }

    fn draw(&self) -> anyhow::Result<String> {
        let mut svg = String::new();
        self.draw_on(&SVGBackend::with_string(&mut svg, PLOT).into_drawing_area())
            .map_err(|error| anyhow::anyhow!("a plot cannot be drawn: {error}"))?;
        Ok(svg)
    }

    fn most(&self) -> f64 {
        let numbers = self.lines.iter().flat_map(|(_, points)| points.iter().flatten());
        numbers.copied().fold(0.0, f64::max)
    }

    fn draw_on<'a>(
        &self,
        area: &DrawingArea<SVGBackend<'a>, plotters::coord::Shift>,
    ) -> Result<(), DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>> {
        area.fill(&WHITE)?;
        let rows: Range<f64> = 0.0..(self.labels.len() - 1) as f64;
        let mut chart = ChartBuilder::on(area)
            .margin(12)
            .x_label_area_size(40)
            .y_label_area_size(70)
            .build_cartesian_2d(rows, 0.0..(self.most() * 1.08).max(f64::MIN_POSITIVE))?;
        let label = |row: &f64| {
            // Between two rows nothing is measured.
            let is_row = (row - row.round()).abs() < 1e-6;
            let label = self.labels.get(row.round() as usize).filter(|_| is_row);
            label.cloned().unwrap_or_default()
        };
        chart
            .configure_mesh()
            .x_labels(self.labels.len().min(12))
            .x_label_formatter(&label)
            .y_desc(self.unit)
            .light_line_style(TRANSPARENT)
            .draw()?;
        for (index, (name, points)) in self.lines.iter().enumerate() {
            let colour = Palette99::pick(index).stroke_width(2);
            let measured = || {
                let numbered = points.iter().enumerate();
                numbered.filter_map(|(row, number)| Some((row as f64, (*number)?)))
            };
            chart
                .draw_series(LineSeries::new(measured(), colour))?
                .label(*name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour));
            let dots = measured().map(|point| Circle::new(point, 3, colour.filled()));
            chart.draw_series(dots)?;
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperRight)
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK.mix(0.3))
            .draw()?;
        area.present()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;

    fn table(rows: usize) -> Table {
        let columns = [("block", "B"), ("a<b", "MB/s"), ("odd", "x"), ("c", "MB/s")];
        let mut table = Table::new("rates & more", &Machine::default(), &columns);
        for row in 0..rows {
            let missing = if row == 1 { Cell::Missing } else { 3.5.into() };
            table.row([format!("{row}K").into(), (row as f64).into(), 1.5.into(), missing]);
        }
        table
    }

    #[test]
    fn all_is_on_the_page_and_nothing_breaks_it() {
        let page = page(&[table(3), table(1)]).unwrap();
        assert!(page.contains("rates &amp; more") && page.contains("a&lt;b"));
        assert!(!page.contains("a<b"), "names are not markup");
        assert_eq!(page.matches("<svg").count(), 1, "one row is no plot");
        assert_eq!(page.matches("<tr>").count(), 4 + 2);
        assert!(!page.contains("http://") || !page.contains("src="), "nothing is fetched");
    }

    #[test]
    fn the_plot_has_the_columns_of_one_unit() {
        let table = table(3);
        let plot = Plot::of(&table).unwrap();
        assert_eq!(plot.labels, ["0K", "1K", "2K"]);
        assert_eq!(plot.unit, "MB/s");
        let lines: Vec<_> = plot.lines.iter().map(|line| line.0).collect();
        assert_eq!(lines, ["a<b", "c"]);
        assert_eq!(plot.lines[1].1, [Some(3.5), None, Some(3.5)]);
    }

    #[test]
    fn no_rows_and_no_figures_are_no_plot() {
        assert!(page(&[]).unwrap().contains("</html>"));
        let mut words = Table::new("words", &Machine::default(), &[("a", ""), ("b", "")]);
        words.row(["x".into(), "y".into()]);
        words.row(["x".into(), Cell::Missing]);
        assert!(Plot::of(&words).is_none());
    }
}
