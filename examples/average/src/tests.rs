use cellway::{Config, Kernel};

use super::*;

#[test]
fn means_move_into_the_heaps() {
    let means = means_of_some().unwrap();
    for (mean, heap) in means.iter().zip([10.0, 20.0, 30.0, 40.0]) {
        assert_eq!(mean.count, u64::from(POINTS) / 4);
        assert!(mean.coord.iter().all(|x| (x - heap).abs() < 0.1), "{mean:?}");
    }
}

#[test]
fn one_round_is_that_of_a_plain_loop() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("points");
    let points: Vec<_> = (0..50_000).map(some_point).collect();
    std::fs::write(&file, Records::of(&points).bytes()).unwrap();
    let means = [8, 17, 29, 44].map(|x| Average { coord: [f64::from(x); 3], ..Average::default() });
    let sums = Config::default().reduce(&Averages { means: means.to_vec() }, &file).unwrap().part;
    for (heap, sum) in [10.0_f32, 20.0, 30.0, 40.0].into_iter().zip(sums) {
        let of_heap = points.iter().filter(|point| (point.coord[0] - heap).abs() < 2.0);
        let wanted = of_heap.fold((0, 0.0), |(n, x), p| (n + 1, x + f64::from(p.coord[1])));
        assert_eq!(sum.count, wanted.0);
        assert!((sum.coord[1] - wanted.1).abs() < 1e-6 * wanted.1, "{sum:?} {wanted:?}");
    }
}

#[test]
fn a_part_is_saved_with_its_layout() {
    let kernel = Averages { means: vec![Average { id: 7, count: 1, coord: [0.5; 3] }; 2] };
    let mut saved = Vec::new();
    kernel.save(&kernel.means, &mut saved).unwrap();
    assert_eq!(kernel.load(&saved, 1).unwrap(), kernel.means);
    let other = Records::of(&[Point { coord: [1.0; 3] }]).to_bytes();
    let error = kernel.load(&other, 1).unwrap_err();
    assert!(error.what.contains("`Average` here and `Point` there"), "{error}");
}

#[test]
fn a_file_that_ends_inside_a_point_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("points");
    std::fs::write(&file, [0; 25]).unwrap();
    let error = means_of(&file).unwrap_err().to_string();
    assert!(error.contains("no whole points") && error.contains("f32"), "{error}");
}
