//! One result type for every experiment, printed for people or as JSON.

use std::fmt::Write as _;

use serde::Serialize;

use crate::machine::Machine;

/// The width people read at.
const LINE_COLUMNS: usize = 80;

/// What one experiment found.
#[derive(Clone, Debug, Serialize)]
pub struct Table {
    /// What was measured, under which conditions.
    pub title: String,
    /// The command that produces it again.
    pub command: String,
    /// Where it was measured.
    pub machine: Machine,
    /// One per entry of a row.
    pub columns: Vec<Column>,
    /// The results.
    pub rows: Vec<Vec<Cell>>,
    /// What a reader must know to judge the figures.
    pub notes: Vec<String>,
}

/// A column's name and unit (empty for text and plain counts).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Column {
    /// What the column holds.
    pub name: String,
    /// Its unit; `x` for a ratio.
    pub unit: String,
}

/// One entry of a row.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Cell {
    /// A name.
    Text(String),
    /// A whole number: printed as it is.
    Count(u64),
    /// A measured number: printed with three digits.
    Number(f64),
    /// Not measured (`null` in JSON).
    Missing,
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Cell::Text(text.to_owned())
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Cell::Text(text)
    }
}

impl From<f64> for Cell {
    fn from(number: f64) -> Self {
        if number.is_finite() { Cell::Number(number) } else { Cell::Missing }
    }
}

impl From<usize> for Cell {
    fn from(count: usize) -> Self {
        Cell::Count(count as u64)
    }
}

impl<T: Into<Cell>> From<Option<T>> for Cell {
    fn from(cell: Option<T>) -> Self {
        cell.map_or(Cell::Missing, Into::into)
    }
}

impl std::fmt::Display for Cell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Cell::Text(text) => f.write_str(text),
            Cell::Count(count) => write!(f, "{count}"),
            Cell::Missing => f.write_str("-"),
            Cell::Number(number) => {
                let digits = match number.abs() {
                    0.0..9.995 => 2,
                    9.995..99.95 => 1,
                    _ => 0,
                };
                write!(f, "{number:.digits$}")
            }
        }
    }
}

impl Table {
    /// An empty table; `columns` as `(name, unit)`.
    #[must_use]
    pub fn new(title: impl Into<String>, machine: &Machine, columns: &[(&str, &str)]) -> Self {
        let column = |&(name, unit): &(&str, &str)| Column { name: name.into(), unit: unit.into() };
        Self {
            title: title.into(),
            command: String::new(),
            machine: machine.clone(),
            columns: columns.iter().map(column).collect(),
            rows: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Appends a row; it has one cell per column.
    pub fn row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        let row: Vec<Cell> = cells.into_iter().collect();
        debug_assert_eq!(row.len(), self.columns.len(), "one cell per column");
        self.rows.push(row);
    }

    /// Appends a note.
    pub fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    /// The table for people, 80 columns wide. A wider one is folded: the first
    /// column comes again before each further group of columns.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        for line in wrap(&self.title, LINE_COLUMNS) {
            let _ = writeln!(text, "{line}");
        }
        for group in self.column_groups() {
            self.write_group(&mut text, &group);
        }
        for note in &self.notes {
            for (index, line) in wrap(note, LINE_COLUMNS - 2).iter().enumerate() {
                let _ = writeln!(text, "{}{line}", if index == 0 { "* " } else { "  " });
            }
        }
        text
    }

    fn width(&self, column: usize) -> usize {
        let head = &self.columns[column];
        let cells = self.rows.iter().map(|row| row[column].to_string().chars().count());
        cells.chain([head.name.chars().count(), head.unit.chars().count()]).max().unwrap_or(0)
    }

    fn column_groups(&self) -> Vec<Vec<usize>> {
        let mut groups: Vec<Vec<usize>> = vec![vec![0]];
        let mut used = self.width(0);
        for column in 1..self.columns.len() {
            let width = self.width(column) + 2;
            if used + width > LINE_COLUMNS && groups.last().is_some_and(|group| group.len() > 1) {
                groups.push(vec![0]);
                used = self.width(0);
            }
            used += width;
            if let Some(group) = groups.last_mut() {
                group.push(column);
            }
        }
        groups
    }

    fn write_group(&self, text: &mut String, group: &[usize]) {
        let line = |text: &mut String, cell: &dyn Fn(usize) -> String| {
            let cells = group.iter().map(|&column| {
                let (cell, width) = (cell(column), self.width(column));
                if self.is_text(column) {
                    format!("{cell:<width$}")
                } else {
                    format!("{cell:>width$}")
                }
            });
            let _ = writeln!(text, "{}", cells.collect::<Vec<_>>().join("  ").trim_end());
        };
        line(text, &|column| self.columns[column].name.clone());
        if group.iter().any(|&column| !self.columns[column].unit.is_empty()) {
            line(text, &|column| self.columns[column].unit.clone());
        }
        for row in &self.rows {
            line(text, &|column| row[column].to_string());
        }
    }

    fn is_text(&self, column: usize) -> bool {
        self.rows.iter().any(|row| matches!(row[column], Cell::Text(_)))
    }
}

/// Breaks `text` at spaces into lines of at most `columns` characters.
fn wrap(text: &str, columns: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line_now = lines.last().map_or(0, |line| line.chars().count());
        if line_now > 0 && line_now + 1 + word.chars().count() > columns {
            lines.push(String::new());
        }
        if let Some(line) = lines.last_mut() {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(columns: usize) -> Table {
        let names: Vec<String> = (0..columns).map(|c| format!("column{c:02}")).collect();
        let heads: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "ns")).collect();
        let mut table = Table::new("word ".repeat(40), &Machine::default(), &heads);
        table.row((0..columns).map(|c| if c == 0 { "first".into() } else { Cell::from(c as f64) }));
        table.note("note ".repeat(40));
        table
    }

    #[test]
    fn no_line_is_longer_than_80_columns_and_no_column_is_lost() {
        let text = sample(20).to_text();
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!((0..20).all(|c| text.contains(&format!("column{c:02}"))), "{text}");
        assert_eq!(text.matches("first").count(), 3, "{text}");
    }

    #[test]
    fn numbers_keep_three_digits() {
        let shown = |number: f64| Cell::from(number).to_string();
        assert_eq!(shown(0.123), "0.12");
        assert_eq!(shown(9.999), "10.0");
        assert_eq!(shown(123.4), "123");
        assert_eq!(shown(f64::NAN), "-");
    }

    #[test]
    fn json_has_values_not_variants() {
        let json = serde_json::to_value(sample(2)).unwrap();
        assert_eq!(json["rows"][0], serde_json::json!(["first", 1.0]));
        assert_eq!(json["columns"][1]["unit"], "ns");
    }
}
