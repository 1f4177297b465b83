use std::sync::Arc;

use cellway::fs::{Files, Kind, OpenMode, wait};

use crate::server::Factors;

fn read(name: &str) -> Result<String, Kind> {
    let files = Files::new("ann").with("#f", Arc::new(Factors(None))).unwrap();
    let mut text = [0; 512];
    let read = wait(async {
        let mut file = files.open(name, OpenMode::READ).await?;
        file.read(&mut text).await
    });
    let len = read.map_err(|error| error.kind())?;
    Ok(String::from_utf8(text[..len].to_vec()).unwrap())
}

#[test]
fn the_file_of_a_number_holds_its_prime_factors() {
    for (name, factors) in
        [("#f/1", "\n"), ("#f/60", "2 2 3 5 \n"), ("#f/4294967291", "4294967291 \n")]
    {
        assert_eq!(read(name).as_deref(), Ok(factors), "{name}");
    }
    assert_eq!(read("#f/0"), Err(Kind::NotFound));
    assert_eq!(read("#f/60/2"), Err(Kind::NotFound));
}
